"""What guests of tests and of benches have in common: the monitor, its processor, the kernel's command line."""

QEMU = "qemu-system-x86_64"
BUSYBOX = "/bin/busybox"
# Always at hand: modprobe is kmod under its other name, and kmod reads compressed tables.
TOOLS = {"/sbin/modprobe": "kmod", "/sbin/insmod": "kmod", "/sbin/lsmod": "kmod", "/sbin/rmmod": "kmod"}
# What the kernel measures at start is wrong when the host is busy. So loops per jiffy (250 a second)
# are given, which saves a second too; the timer is not checked, for late ticks make the kernel panic;
# and the clock is the HPET, whose rate is known: with the TSC guests ran 35 times too fast.
KERNEL_LINE = "console=ttyS0 quiet panic=-1 lpj=4000000 no_timer_check tsc=unstable clocksource=hpet"
# All that qemu can emulate but five-level page tables: the one panic in an interrupt that was seen
# was with them.
PROCESSOR = "max,la57=off"
