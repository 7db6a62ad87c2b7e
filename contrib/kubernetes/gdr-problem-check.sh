#!/usr/bin/env bash
# A check of node-problem-detector: 0 no problem, 1 a problem, 2 not known. One line says what.
#
#   GDR                  the command, where neither PATH nor /usr/local/bin nor /opt/gdr/bin has it
#   GDR_DOCTOR_OPTIONS   further options of `gdr doctor`, such as: --for nccl --skip acs.path
set -uo pipefail

# Not every PATH has the folders of an administrator.
export PATH="${PATH:-/usr/bin:/bin}:/usr/local/bin:/opt/gdr/bin"
gdr=${GDR:-gdr}

read -ra options <<<"${GDR_DOCTOR_OPTIONS:-}"
report=$(timeout 50 "$gdr" --color never doctor --quiet --require-gpu "${options[@]}" 2>&1)
status=$?
head -n 1 <<<"$report" | cut -c 1-200
case $status in
0 | 1) exit 0 ;;
2) exit 1 ;;
*) exit 2 ;;
esac
