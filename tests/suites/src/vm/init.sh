#!/usr/bin/busybox sh
# The init process of the test guest. The kernel's console is the first serial line. The output of
# this script goes to the second, which the host reads; the kernel's command line names it.
PATH=/usr/sbin:/usr/bin
HOME=/root
export PATH HOME
cd /
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs dev /dev
busybox mount -t tmpfs tmpfs /tmp
busybox mount -t tmpfs tmpfs /run
busybox mkdir -p /dev/shm
busybox mount -t tmpfs shm /dev/shm

exec </dev/null >"/dev/$tests_line" 2>&1
busybox stty raw 115200 <"/dev/$tests_line"
echo "gdr-vm: up"

# Prints a message and ends the guest.
finish() {
    echo "gdr-vm: $1"
    # Power-off discards the serial line's buffer.
    busybox sync
    busybox sleep 0.2
    busybox poweroff -f
}
must() { "$@" || finish "cannot: $*"; }

# Modules for other CPUs fail to load. A module that is missing makes a command below fail.
while read -r module; do
    busybox insmod "/modules/$module.ko"
done </modules/order

# Two hosts on one link: the network namespace "near" for the soft provider, and the initial one
# for rxe. rxe works in the initial namespace only, and both need UDP port 4791.
# 4200 bytes carry RoCE's largest path MTU of 4096.
must /usr/bin/ip link set lo up
must /usr/bin/ip netns add near
must /usr/bin/ip link add far0 mtu 4200 type veth peer name near0 mtu 4200 netns near
must /usr/bin/ip addr add 10.78.0.2/24 dev far0
must /usr/bin/ip addr add fd78::2/64 dev far0 nodad
must /usr/bin/ip link set far0 up
must /usr/bin/ip -n near link set lo up
must /usr/bin/ip -n near addr add 10.78.0.1/24 dev near0
must /usr/bin/ip -n near addr add fd78::1/64 dev near0 nodad
must /usr/bin/ip -n near link set near0 up
must /usr/bin/rdma link add rxe0 type rxe netdev far0
# Neighbour discovery takes a moment on a new interface.
for host in 10.78.0.1 fd78::1; do
    for attempt in 1 2 3 4 5 6 7 8 9 10; do
        busybox ping -c 1 -W 1 "$host" >/dev/null && break
    done
done

echo "gdr-vm: ready $(busybox uname -r)"
. /gdr/programs
finish "done"
