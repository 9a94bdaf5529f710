"""What a graph takes of several machines, on paper: a pure model, and a probe of the rates."""
