"""Whether one thing is really faster than another: measured side by side in rounds, and only so.

The samples of one run know nothing of the difference between two processes or two days. ``Rounds`` measures
candidates one after the other, in fresh processes, round after round; ``statistics`` says what follows from
their paired times. ``opponents`` finds the two sides of a comparison, ``finalists`` the best of each
provider."""
