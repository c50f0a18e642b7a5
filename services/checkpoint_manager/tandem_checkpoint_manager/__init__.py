"""The checkpoint manager: takes shards, joins them, publishes the result. The store's only writer."""
