"""What a user would take instead of SAC-AE-CAPS, on the same task: other learners, classical controllers."""
