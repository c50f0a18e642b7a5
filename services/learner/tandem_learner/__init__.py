"""The learner service: groups in, the next version of a LoRA adapter out."""
