"""What the shell prints and asks: options, tables, prompts, exit codes."""
