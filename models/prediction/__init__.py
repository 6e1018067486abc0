"""One prediction, explained: its terms, its interval and what it rests on."""
