"""What builds read: one format a file, in order, in constant memory."""
