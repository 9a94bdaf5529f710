"""The demo: the main job on real input, and on a graph larger than its memory."""
