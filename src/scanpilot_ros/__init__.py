"""The ROS 2 side of scanpilot: nodes and what they share. Only here are rclpy and messages imported."""
