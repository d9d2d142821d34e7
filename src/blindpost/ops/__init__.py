"""What an operator looks at: the page, and several servers started as one."""
