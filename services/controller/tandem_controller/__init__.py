"""The controller: runs the training loop over rollout, learner and checkpoint manager."""
