"""What a request means: order, fold, keep or settle, and which files hold rows that a stream has not seen."""
