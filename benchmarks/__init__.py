"""Speed, as ratios: ours beside a peer, measured in turns in the same run on the same machine."""
