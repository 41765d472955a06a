/* Attaches a disk that is served over NBD at a UNIX socket to this host's kernel, as nbd-client(8) does, and stays
 * until it is detached. usage: attach SOCKET DEVICE */
#include <endian.h>
#include <fcntl.h>
#include <linux/nbd.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void take(int fd, void *to, size_t bytes) {
    for (char *at = to; bytes;) {
        ssize_t n = read(fd, at, bytes);
        if (n <= 0)
            _exit(4);
        at += n;
        bytes -= n;
    }
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strncpy(at.sun_path, argv[1], sizeof at.sun_path - 1);
    int peer = socket(AF_UNIX, SOCK_STREAM, 0), disk = open(argv[2], O_RDWR);
    if (disk < 0 || connect(peer, (struct sockaddr *)&at, sizeof at))
        return 3;
    struct __attribute__((packed)) {
        uint64_t magic, option_magic;
        uint16_t flags;
    } greeting;
    struct __attribute__((packed)) {
        uint32_t flags;
        uint64_t magic;
        uint32_t option, bytes;
    } wanted = {htobe32(3), htobe64(0x49484156454F5054), htobe32(1), 0};
    struct __attribute__((packed)) {
        uint64_t size;
        uint16_t flags;
    } export;
    take(peer, &greeting, sizeof greeting);
    if (write(peer, &wanted, sizeof wanted) != sizeof wanted)
        return 4;
    take(peer, &export, sizeof export);
    if (ioctl(disk, NBD_SET_BLKSIZE, 4096UL) || ioctl(disk, NBD_SET_SIZE_BLOCKS, be64toh(export.size) / 4096) ||
        ioctl(disk, NBD_SET_FLAGS, (unsigned long)be16toh(export.flags)) || ioctl(disk, NBD_SET_SOCK, peer))
        return 5;
    int over = ioctl(disk, NBD_DO_IT);
    /* Outstanding requests fail instead of waiting for ever. */
    ioctl(disk, NBD_CLEAR_QUE);
    ioctl(disk, NBD_CLEAR_SOCK);
    return over ? 6 : 0;
}
