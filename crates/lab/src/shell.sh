
# The shell of a lab's machine. Scripts come over the port latpath.shell: a request is one line, "ID SCRIPT-IN-BASE64"; its
# answer "ID STATUS LENGTH" and as many bytes of output.
mkdir -p /dev/virtio-ports
tries=0
while [ ! -e /dev/virtio-ports/latpath.shell ]; do
    for port in /sys/class/virtio-ports/*; do
        [ -e "$port/name" ] && ln -sf "/dev/${port##*/}" "/dev/virtio-ports/$(cat "$port/name")"
    done
    tries=$((tries + 1))
    if [ $tries -gt 200 ]; then
        echo "latpath: no port latpath.shell after 20 s; here are $(ls /dev/virtio-ports)"
        /bin/busybox poweroff -f
    fi
    sleep 0.1
done
exec 3<>/dev/virtio-ports/latpath.shell
# On the console: what the kernel said before this is its boot.
echo "latpath: up"
read -r uptime rest </proc/uptime
echo "ready $uptime $(uname -r)" >&3
while :; do
    # No host at the other end reads as an end of file: wait for one.
    read -r id script <&3 || { sleep 0.1; continue; }
    echo "$script" | base64 -d >/run/request
    /bin/sh /run/request >/run/answer 2>&1 </dev/null 3>&-
    status=$?
    echo "$id $status $(wc -c </run/answer)" >&3
    cat /run/answer >&3
done
