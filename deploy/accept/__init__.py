"""Says whether a running endpoint may go into service: answers, tool calls, speed, drafts."""
