#!/bin/sh
# Finds the Python to build .venv from and the ROS 2 to use, then hands over to set_up.py.
#
# This part is in sh because it must also run where there is no Python, or only an old one.
# Usage: setup.sh demo|test
set -eu

here=$(cd "$(dirname "$0")" && pwd)
OLDEST=10 # 3.OLDEST .. 3.NEWEST: the minor versions that the pinned packages serve
NEWEST=14

refuse() {
    printf 'setup: %s\n' "$1" >&2
    shift
    printf '       %s\n' "$@" >&2
    exit 1
}

version() {
    "$1" -c 'import sys; print("%d %d" % sys.version_info[:2])' 2>/dev/null
}

# usable PYTHON: its version serves and, where ROS is sourced, it is the one ROS was built for.
usable() {
    found=$(version "$1") || return 1
    [ "${found% *}" -eq 3 ] && [ "${found#* }" -ge $OLDEST ] && [ "${found#* }" -le $NEWEST ] || return 1
    [ "$ros" = wheels ] || "$1" -c 'import rclpy' 2>/dev/null
}

# Sourcing a ROS installation sets both. AMENT_PREFIX_PATH alone may name .venv itself.
ros=wheels
[ -z "${AMENT_PREFIX_PATH:-}" ] || [ -z "${ROS_DISTRO:-}" ] || ros=$ROS_DISTRO

if [ "$ros" = wheels ] && [ "$(uname -s) $(uname -m)" != 'Linux x86_64' ]; then
    refuse "there are no ROS 2 wheels for $(uname -s) on $(uname -m), only for Linux on x86_64." \
        'Install ROS 2 Humble or newer, source its setup file (source /opt/ros/DISTRO/setup.sh), and' \
        'run this again: it is then used instead. For the library without ROS: pip install .'
fi

if [ -n "${PYTHON:-}" ]; then
    found=$(version "$PYTHON") || refuse "PYTHON=$PYTHON does not run." 'Set PYTHON to a Python interpreter.'
    usable "$PYTHON" || {
        [ "$ros" = wheels ] || refuse \
            "ROS 2 $ros is sourced, but PYTHON=$PYTHON (Python ${found% *}.${found#* }) cannot import its rclpy." \
            'Leave PYTHON unset, or open a terminal where ROS is not sourced.'
        refuse "PYTHON=$PYTHON is Python ${found% *}.${found#* }; needed is 3.$OLDEST to 3.$NEWEST." \
            'Set PYTHON to such a one, or leave it unset.'
    }
    exec "$PYTHON" "$here/set_up.py" "$1" --ros "$ros"
fi

seen=
for python in python3 python3.12 python3.11 python3.13 python3.14 python3.10 /usr/bin/python3 python; do
    found=$(version "$python") || continue
    if usable "$python"; then
        exec "$python" "$here/set_up.py" "$1" --ros "$ros"
    fi
    seen="$seen $python (${found% *}.${found#* })"
done

[ "$ros" = wheels ] || refuse "ROS 2 $ros is sourced, but no Python found here can import its rclpy:${seen:- none}." \
    'Set PYTHON to the one ROS was installed for (usually PYTHON=/usr/bin/python3), or open a terminal' \
    'where ROS is not sourced.'
refuse "no Python 3.$OLDEST to 3.$NEWEST found. Found:${seen:- none}." \
    'Install one (Debian, Ubuntu: sudo apt install python3 python3-venv) or name one: make setup PYTHON=/path/to/python3'
