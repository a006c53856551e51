"""What ``ros2 launch FILE name:=value ...`` does, for tests: the real launch without the ros2 command."""

from __future__ import annotations

import sys

from launch import LaunchDescription, LaunchService
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource

file, *assignments = sys.argv[1:]
arguments = [tuple(assignment.split(":=", 1)) for assignment in assignments]
service = LaunchService()
source = PythonLaunchDescriptionSource(file)
service.include_launch_description(
    LaunchDescription([IncludeLaunchDescription(source, launch_arguments=arguments)])
)
sys.exit(service.run())
