/* A small monitor: a 32-bit guest without paging that increments a word of every page of its memory.
 *
 * kvm MIB ROUNDS
 *
 * The guest's memory is anonymous memory of this process, as in qemu. Between rounds the host writes to each page,
 * and after each it checks all of them. Exit code 3: no machine can be created (the kernel's error is on stdout);
 * 4: a processor cannot run; 5: a page is wrong.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#define PAGE 4096
#define CODE 4096 /* Where the guest's code is; its pages begin after it. */
#define FIRST (2 * PAGE)

/* mov ebx, FIRST; next: add dword [ebx], 7; add ebx, PAGE; cmp ebx, END; jb next; hlt; jmp to the beginning. */
static const uint8_t PROGRAM[] = {0xbb, 0, 0x20, 0, 0,    0x83, 0x03, 7,    0x81, 0xc3, 0, 0x10, 0, 0,
                                  0x81, 0xfb, 0, 0, 0, 0, 0x72, 0xef, 0xf4, 0xeb, 0xe7};
#define END_AT 16

static int machine(void) {
    int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    int vm = kvm < 0 ? -1 : ioctl(kvm, KVM_CREATE_VM, 0);
    if (vm < 0) {
        printf("%s: %s\n", kvm < 0 ? "open" : "KVM_CREATE_VM", strerror(errno));
        exit(3);
    }
    return vm;
}

/* A processor in protected mode, with flat segments. */
static int processor(int vm) {
    int cpu = ioctl(vm, KVM_CREATE_VCPU, 0);
    struct kvm_sregs s;
    if (cpu < 0 || ioctl(cpu, KVM_GET_SREGS, &s))
        exit(4);
    struct kvm_segment flat = {.limit = 0xffffffff, .selector = 8, .present = 1, .s = 1, .db = 1, .g = 1};
    s.cs = s.ds = s.es = s.fs = s.gs = s.ss = flat;
    s.cs.type = 11;
    s.ds.type = s.es.type = s.fs.type = s.gs.type = s.ss.type = 3;
    s.cr0 |= 1;
    struct kvm_regs r = {.rip = CODE, .rflags = 2};
    if (ioctl(cpu, KVM_SET_SREGS, &s) || ioctl(cpu, KVM_SET_REGS, &r))
        exit(4);
    return cpu;
}

int main(int argc, char **argv) {
    size_t bytes = (argc > 1 ? atoi(argv[1]) : 64) * 1048576UL;
    uint32_t rounds = argc > 2 ? atoi(argv[2]) : 3, end = bytes;
    int vm = machine();
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct kvm_userspace_memory_region region = {.memory_size = bytes, .userspace_addr = (uintptr_t)memory};
    if (memory == MAP_FAILED || ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region))
        return 4;
    memcpy(memory + CODE, PROGRAM, sizeof PROGRAM);
    memcpy(memory + CODE + END_AT, &end, sizeof end);
    for (size_t at = FIRST; at < bytes; at += PAGE)
        for (size_t i = 0; i < PAGE / 4; i++)
            ((uint32_t *)(memory + at))[i] = at + i * i % 1021;
    int cpu = processor(vm);
    struct kvm_run *run = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, cpu, 0);
    for (uint32_t round = 1; round <= rounds; round++) {
        int r;
        do
            r = ioctl(cpu, KVM_RUN, 0);
        while (r < 0 && errno == EINTR);
        if (r < 0 || run->exit_reason != KVM_EXIT_HLT) {
            printf("KVM_RUN: %s, exit %u\n", r < 0 ? strerror(errno) : "done", run->exit_reason);
            return 4;
        }
        for (size_t at = FIRST; at < bytes; at += PAGE)
            for (size_t i = 0; i < PAGE / 4; i++) {
                uint32_t expected = at + i * i % 1021 + (i ? 0 : 7 * round);
                uint32_t got = ((volatile uint32_t *)(memory + at))[i];
                if (got != expected) {
                    printf("round %u: word %zu of the page at %zu is %u instead of %u\n", round, i, at, got, expected);
                    return 5;
                }
            }
    }
    printf("%u rounds of %zu pages are right\n", rounds, (bytes - FIRST) / PAGE);
    return 0;
}
