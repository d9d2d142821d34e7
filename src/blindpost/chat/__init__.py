"""The app's own messages inside the agent's: contacts, profiles, text, receipts and groups."""
