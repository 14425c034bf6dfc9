# In the lab's hypervisor of 64-bit ARM: a guest whose NIC stands at virtio-mmio, served by QEMU and then by vhost; what latpath says of
# it, in /out. $1: latpath, $2: how many packets.
set -eu -o pipefail
latpath=$1 packets=$2 work=/run/guest
mkdir -p $work/root/modules $work/root/bin
cp /usr/bin/busybox $work/root/bin/
n=10
for file in $(modprobe --show-depends virtio_mmio && modprobe --show-depends virtio_net); do
    case $file in
    *.ko.xz) busybox xzcat "$file" >"$work/root/modules/$n.ko" ;;
    *.ko) cp "$file" "$work/root/modules/$n.ko" ;;
    *) continue ;;
    esac
    n=$((n + 1))
done
cat >$work/root/init <<'END'
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys
/bin/busybox mount -t sysfs sysfs /sys
for module in /modules/*.ko; do
    /bin/busybox insmod $module
done
until [ -e /sys/class/net/eth0 ]; do /bin/busybox usleep 100000; done
/bin/busybox ip link set eth0 up
/bin/busybox ip addr add 192.0.2.2/24 dev eth0
echo "the guest is up"
while :; do /bin/busybox sleep 3600; done
END
chmod 755 $work/root/init
(cd $work/root && busybox find . | cpio -o -H newc --quiet) >$work/initramfs
ip tuntap add dev vnet0 mode tap
ip addr add 192.0.2.1/24 dev vnet0
ip link set vnet0 up

ping() { busybox ping -q -c "$1" -i 0.05 -W 30 192.0.2.2; }
for vhost in off on; do
    console=/out/guest-$vhost.console
    qemu-system-aarch64 -name arm -machine virt,gic-version=3 -accel kvm -cpu host -smp 1 -m 256M -nodefaults -no-user-config \
        -no-reboot -display none -kernel /boot/vmlinuz-* -initrd $work/initramfs -append "console=ttyAMA0 panic=-1 loglevel=5 ipv6.disable=1" \
        -serial file:$console -netdev tap,id=nic,ifname=vnet0,script=no,downscript=no,vhost=$vhost \
        -device virtio-net-device,netdev=nic </dev/null &
    guest=$!
    tries=0
    until grep -q "the guest is up" $console 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 1500 ] && kill -0 $guest || { echo "no guest"; exit 1; }
        busybox usleep 100000
    done
    ping 3
    "$latpath" exits --vm arm --events --json -- busybox ping -q -c "$packets" -i 0.05 -W 30 192.0.2.2 >/out/exits-$vhost
    "$latpath" ladder --vm arm --json -- busybox ping -q -c "$packets" -i 0.05 -W 30 192.0.2.2 >/out/ladder-$vhost
    "$latpath" queues --vm arm --json -- busybox ping -q -c "$packets" -i 0.05 -W 30 192.0.2.2 >/out/queues-$vhost
    "$latpath" exits --vm arm --events -- busybox ping -q -c 20 -i 0.05 -W 30 192.0.2.2
    "$latpath" ladder --vm arm -- busybox ping -q -c 20 -i 0.05 -W 30 192.0.2.2
    kill $guest
    wait $guest || true
done
