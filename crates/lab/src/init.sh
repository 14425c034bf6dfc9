#!/bin/busybox sh
# First service of the lab's guest: lays the system, starts the guest's own services; then shell.sh, which is put after
# this, runs scripts.
export PATH=/bin HOME=/root
/bin/busybox mkdir -p /bin /proc /sys /dev /run /tmp
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
mount -t tracefs tracefs /sys/kernel/tracing
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /dev/shm /dev/virtio-ports && mount -t tmpfs tmpfs /dev/shm
hostname guest0

for module in /modules/*.ko; do
    insmod "$module" || echo "latpath-guest: cannot load $module"
done

ip link set lo up
# A device appears a moment after its driver was loaded.
tries=0
while [ ! -e /sys/class/net/eth0 ]; do
    tries=$((tries + 1))
    if [ $tries -gt 200 ]; then
        echo "latpath-guest: no eth0 after 20 s; here are $(ls /sys/class/net)"
        poweroff -f
    fi
    usleep 100000
done
ip link set eth0 up
# A script among the guest's programs, for guests that boot without a test at their shell.
[ -x /bin/services ] && /bin/services >/run/services.log 2>&1 &
