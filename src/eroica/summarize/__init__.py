"""Turn the events, stacks and samples of one worker and window into its pattern."""
