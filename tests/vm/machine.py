"""Shared by guests of tests and of benches: the monitor, its processor, the kernel's command line."""

QEMU = "qemu-system-x86_64"
BUSYBOX = "/bin/busybox"
# Always available: modprobe is another name of kmod, and kmod reads compressed tables.
TOOLS = {"/sbin/modprobe": "kmod", "/sbin/insmod": "kmod", "/sbin/lsmod": "kmod", "/sbin/rmmod": "kmod"}
# The kernel's calibration at boot is wrong on a busy host. So loops per jiffy (250 a second) are given, which
# also saves a second; the timer is not checked, since late ticks make the kernel panic; and the clock is the
# HPET, whose rate is known: with the TSC, guests ran 35 times too fast.
KERNEL_LINE = "console=ttyS0 quiet panic=-1 lpj=4000000 no_timer_check tsc=unstable clocksource=hpet"
# All that qemu can emulate except five-level page tables: the only panic seen in an interrupt was with them.
PROCESSOR = "max,la57=off"
