#!/bin/busybox sh
# First stage of the lab's hypervisor: this machine's root, read-only, with a kernel's and tools' folders and a throw-away
# layer on top, becomes its root. Where the tools are a userland of another architecture, this machine's root is in /host.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
give_up() {
    echo "latpath-hypervisor: $1"
    poweroff -f
}
for module in /modules/*.ko; do
    insmod "$module" || give_up "cannot load $module"
done
mkdir -p /layers /new
mount -t tmpfs -o size=75% tmpfs /layers
cd /layers || exit
mkdir upper work root kernel tools
for tag in root kernel tools; do
    mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose $tag $tag || give_up "cannot mount $tag"
done
cp /second /layers/upper/.latpath-init
chmod 755 /layers/upper/.latpath-init
lower=/layers/kernel:/layers/tools
[ -e /own-userland ] || lower=$lower:/layers/root
layers=lowerdir=$lower,upperdir=/layers/upper,workdir=/layers/work
mount -t overlay -o $layers overlay /new || give_up "cannot lay its root"
if [ -e /own-userland ]; then
    mkdir -p /new/host /new/proc /new/sys /new/dev
    mount --move /layers/root /new/host
fi
for folder in proc sys dev; do
    mount --move /$folder /new/$folder
done
exec switch_root /new /bin/busybox sh /.latpath-init
