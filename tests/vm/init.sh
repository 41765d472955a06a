#!/bin/busybox sh
# The guest's first process: mounts what every Linux has, loads the modules, runs the script.
/bin/busybox --install -s /bin
# What ends before this line is the emulated machine's own end (guest.py).
echo "guest: init"
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up

# Names of ports are those of the qemu command line (guest.py).
port() {
    for dir in /sys/class/virtio-ports/*; do
        [ "$(cat "$dir/name")" = "$1" ] && echo "/dev/${dir##*/}"
    done
}

end() {
    echo "$1" > "$(port code)"
    tar -cf "$(port files)" -C /out .
    sync
    poweroff -f
}

for module in $(cat /etc/modules); do
    # Without it the script would test something else.
    modprobe "$module" || end "no-module-$module"
done
for disk in $(cat /etc/disks); do
    mkdir -p "/disk/$disk"
    mount -t ext4 "/dev/$disk" "/disk/$disk" || end "no-disk-$disk"
done
cd /root
# A session of its own: signals of the script to its group are not for us.
setsid sh /script > "$(port output)" 2>&1 < /dev/null
end "$?"
