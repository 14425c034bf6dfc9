#!/bin/busybox sh
# First and only service of the lab's guest: lays the system, then runs the scripts that come over the port
# latpath.shell. A request is one line, "ID SCRIPT-IN-BASE64"; its answer "ID STATUS LENGTH" and as many bytes of output.
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
# Devices appear a moment after their driver was loaded.
tries=0
while [ ! -e /dev/virtio-ports/latpath.shell ] || [ ! -e /sys/class/net/eth0 ]; do
    for port in /sys/class/virtio-ports/*; do
        [ -e "$port/name" ] && ln -sf "/dev/${port##*/}" "/dev/virtio-ports/$(cat "$port/name")"
    done
    tries=$((tries + 1))
    if [ $tries -gt 200 ]; then
        echo "latpath-guest: no eth0 or no port latpath.shell after 20 s; here are $(ls /sys/class/net /dev/virtio-ports)"
        poweroff -f
    fi
    usleep 100000
done
ip link set eth0 up

exec 3<>/dev/virtio-ports/latpath.shell
read -r uptime rest </proc/uptime
echo "ready $uptime $(uname -r)" >&3
while :; do
    # No host at the other end reads as an end of file: wait for one.
    read -r id script <&3 || { usleep 100000; continue; }
    echo "$script" | base64 -d >/run/request
    sh /run/request >/run/answer 2>&1 </dev/null 3>&-
    status=$?
    echo "$id $status $(wc -c </run/answer)" >&3
    cat /run/answer >&3
done
