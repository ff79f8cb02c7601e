"""What our trainer is compared with: the same training, as the peers' own documentation has one write it."""
