# Second stage of the lab's hypervisor, on this machine's root: what an init system would mount; then shell.sh, which is
# put after this, runs scripts.
export HOME=/root TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t tmpfs tmpfs /run
mkdir -p /dev/pts /dev/shm /run/netns /out
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 out /out
hostname latpath
ip link set lo up
