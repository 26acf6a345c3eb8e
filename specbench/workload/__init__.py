"""What is sent: prompts files and the schedule made of them."""
