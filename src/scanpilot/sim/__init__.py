"""The embedded simulator: worlds, exact ranges and contacts, many robots at once; no ROS, no networks."""
