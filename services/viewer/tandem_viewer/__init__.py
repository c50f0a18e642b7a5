"""`tandem view`: what the agent did, in a browser."""
