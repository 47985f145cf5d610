"""Commands about queues, their workers and inboxes."""
