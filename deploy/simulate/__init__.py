"""A plan on this CPU: the same ranks, fewer of them, around a small model."""

# A second name under which a simulated plan serves its model, so that clients can tell.
MARK = "glm5-ascend-simulated"
