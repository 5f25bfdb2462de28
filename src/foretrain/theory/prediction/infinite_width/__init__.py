"""Networks of infinite width, trained: what they predict, how well they generalize (chapter 10)."""
