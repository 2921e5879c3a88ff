"""The suite `privacy`: questions with private parts, the rule of `sealed`, and hunts for what leaks."""
