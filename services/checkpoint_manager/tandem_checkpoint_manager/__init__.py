"""The checkpoint manager: takes shards, joins them, publishes adapters and training states. The store's only writer."""
