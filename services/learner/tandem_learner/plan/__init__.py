"""`tandem plan`: what a recipe needs, before anything is bought or started.

It lives in the learner's distribution, the only one with torch, transformers and peft: the model is built on torch's
meta device and its adapter attached by the learner's own code, so any model and any `target_modules` is counted as is.

    shapes.py     what the model is made of, and the live bytes of a step, by running it on the meta device
    workload.py   how long transcripts get, how many images there are
    budgets.py    the parts of each process's memory, of a save and of a sync
    hardware.py   instances and file systems that can be had
    fits.py       which of them do
    cli.py        the command
"""
