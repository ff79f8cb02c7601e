"""Does the launcher, the backend or the number of processes change the experiment?

    python -m reference.programs.equivalence

trains one small network in all of these ways and compares the loss of every step and the final parameters.
"""
