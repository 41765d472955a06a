/* mmap, munmap, mprotect, mremap: of mmap(2) and its neighbours. */
#include "conformance.h"



CASE(mmap_gives_zeros) {
    char *p = pages(8);
    for (size_t i = 0; i < 8 * PAGE; i++)
        EXPECT_EQ(p[i], 0);
}
CASE(mmap_of_no_bytes) { EXPECT_ERROR(mmap(NULL, 0, RW, PRIVATE, -1, 0), EINVAL); }
CASE(mmap_neither_private_nor_shared) { EXPECT_ERROR(mmap(NULL, PAGE, RW, MAP_ANONYMOUS, -1, 0), EINVAL); }
CASE(mmap_of_all_addresses) { EXPECT_ERROR(mmap(NULL, -PAGE, RW, PRIVATE, -1, 0), ENOMEM); }
CASE(mmap_length_overflows) { EXPECT_ERROR(mmap(NULL, -1UL, RW, PRIVATE, -1, 0), ENOMEM); }
CASE(mmap_of_more_than_there_is) {
    /* 4 TiB: refused by the heuristic of overcommit on any host that this runs on, unless it is switched off. */
    FILE *f = fopen("/proc/sys/vm/overcommit_memory", "r");
    int mode = 1;
    if (!f || fscanf(f, "%d", &mode) != 1 || mode == 1)
        SKIP("vm.overcommit_memory is 1");
    EXPECT_ERROR(mmap(NULL, 1UL << 42, RW, PRIVATE, -1, 0), ENOMEM);
}
CASE(mmap_noreserve_of_much) { OK(mmap(NULL, 1UL << 42, RW, PRIVATE | MAP_NORESERVE, -1, 0)); }
CASE(mmap_reserve_nine_tib) { OK(mmap(NULL, 9UL << 40, PROT_NONE, PRIVATE | MAP_NORESERVE, -1, 0)); }
CASE(mmap_of_a_closed_descriptor) { EXPECT_ERROR(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, 900, 0), EBADF); }
CASE(mmap_of_an_odd_offset) {
    int fd = OK(open("/proc/self/exe", O_RDONLY));
    EXPECT_ERROR(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 1), EINVAL);
}
CASE(mmap_of_a_directory) {
    int fd = OK(open(".", O_RDONLY));
    EXPECT_ERROR(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0), ENODEV);
}
CASE(mmap_shared_of_a_read_only_file) {
    OK(close(OK(open("f", O_CREAT | O_RDWR, 0600))));
    int fd = OK(open("f", O_RDONLY));
    EXPECT_ERROR(mmap(NULL, PAGE, RW, MAP_SHARED, fd, 0), EACCES);
}
CASE(mmap_fixed_at_an_odd_address) {
    char *p = pages(4);
    EXPECT_ERROR(mmap(p + 1, PAGE, RW, PRIVATE | MAP_FIXED, -1, 0), EINVAL);
}
CASE(mmap_fixed_replaces) {
    char *p = absent(4);
    EXPECT(OK((char *)mmap(p + PAGE, PAGE, RW, PRIVATE | MAP_FIXED, -1, 0)) == p + PAGE);
    EXPECT_EQ(p[PAGE], 0);
    EXPECT(is_filled(p, PAGE));
    EXPECT_EQ((unsigned char)p[2 * PAGE + 1], (unsigned char)((2 * PAGE + 1) * 31 + 2 + 1));
}
CASE(mmap_fixed_of_a_file_over_memory) {
    char *p = absent(3);
    int fd = OK(open("f", O_CREAT | O_RDWR, 0600));
    EXPECT_EQ(write(fd, "file", 4), 4);
    OK(mmap(p + PAGE, PAGE, RW, MAP_PRIVATE | MAP_FIXED, fd, 0));
    EXPECT(!memcmp(p + PAGE, "file", 5));
    OK(munmap(p + PAGE, PAGE));
    EXPECT_EQ(touch(p + PAGE, 0), SEGV_MAPERR);
    EXPECT(is_filled(p, PAGE));
}
CASE(mmap_fixed_noreplace_over_a_mapping) {
    char *p = pages(2);
    EXPECT_ERROR(mmap(p, PAGE, RW, PRIVATE | MAP_FIXED_NOREPLACE, -1, 0), EEXIST);
}
CASE(mmap_fixed_noreplace_on_free_addresses) {
    char *p = hole();
    EXPECT(OK((char *)mmap(p, PAGE, RW, PRIVATE | MAP_FIXED_NOREPLACE, -1, 0)) == p);
    EXPECT_EQ(*p, 0);
}
CASE(mmap_fixed_noreplace_of_a_file_on_free_addresses) {
    char *p = hole();
    int fd = OK(open("/proc/self/exe", O_RDONLY));
    EXPECT(OK((char *)mmap(p, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0)) == p);
    EXPECT(!memcmp(p, "\177ELF", 4));
}
CASE(mmap_hint_is_honoured_where_free) {
    char *p = hole();
    EXPECT(OK((char *)mmap(p, PAGE, RW, PRIVATE, -1, 0)) == p);
}
CASE(mmap_hint_over_a_mapping_goes_elsewhere) {
    char *p = absent(2);
    EXPECT(OK((char *)mmap(p, PAGE, RW, PRIVATE, -1, 0)) != p);
    EXPECT(is_filled(p, 2 * PAGE));
}
CASE(mmap_populate_is_resident) {
    char *p = OK((char *)mmap(NULL, 8 * PAGE, RW, PRIVATE | MAP_POPULATE, -1, 0));
    unsigned char there[8];
    OK(mincore(p, 8 * PAGE, there));
    for (int i = 0; i < 8; i++)
        EXPECT_EQ(there[i] & 1, 1);
}
CASE(mmap_respects_rlimit_as) {
    struct rlimit r = {1 << 20, RLIM_INFINITY};
    OK(setrlimit(RLIMIT_AS, &r));
    EXPECT_ERROR(mmap(NULL, 64 << 20, RW, PRIVATE, -1, 0), ENOMEM);
}
CASE(mmap_respects_rlimit_data) {
    struct rlimit r = {1 << 20, RLIM_INFINITY};
    OK(setrlimit(RLIMIT_DATA, &r));
    EXPECT_ERROR(mmap(NULL, 64 << 20, RW, PRIVATE, -1, 0), ENOMEM);
    OK(mmap(NULL, 64 << 20, PROT_READ, PRIVATE, -1, 0));
}
CASE(munmap_of_no_bytes) { EXPECT_ERROR(munmap(pages(1), 0), EINVAL); }
CASE(munmap_at_an_odd_address) { EXPECT_ERROR(munmap(pages(1) + 1, PAGE), EINVAL); }
CASE(munmap_of_nothing_is_right) { OK(munmap(hole(), PAGE)); }
CASE(munmap_past_the_user_space) { EXPECT_ERROR(munmap((void *)(1UL << 63), PAGE), EINVAL); }
CASE(munmap_of_a_part) {
    char *p = absent(4);
    OK(munmap(p + PAGE, PAGE));
    EXPECT_EQ(touch(p + PAGE, 0), SEGV_MAPERR);
    EXPECT(is_filled(p, PAGE));
    EXPECT_EQ(touch(p + 2 * PAGE, 0), 0);
}
CASE(munmap_of_an_odd_length) {
    char *p = absent(2);
    OK(munmap(p, 1));
    EXPECT_EQ(touch(p + PAGE - 1, 0), SEGV_MAPERR);
    EXPECT_EQ(touch(p + PAGE, 0), 0);
}
CASE(mprotect_none) {
    char *p = absent(2);
    OK(mprotect(p, PAGE, PROT_NONE));
    EXPECT_EQ(touch(p, 0), SEGV_ACCERR);
    OK(mprotect(p, PAGE, RW));
    EXPECT(is_filled(p, 2 * PAGE));
}
CASE(mprotect_read_only) {
    char *p = absent(2);
    OK(mprotect(p, 2 * PAGE, PROT_READ));
    EXPECT(is_filled(p, 2 * PAGE));
    EXPECT_EQ(touch(p, 1), SEGV_ACCERR);
}
CASE(mprotect_at_an_odd_address) { EXPECT_ERROR(mprotect(pages(1) + 1, PAGE, RW), EINVAL); }
CASE(mprotect_unknown_bits) { EXPECT_ERROR(mprotect(pages(1), PAGE, 0x40), EINVAL); }
CASE(mprotect_up_and_down_at_once) {
    EXPECT_ERROR(mprotect(pages(1), PAGE, PROT_GROWSUP | PROT_GROWSDOWN | RW), EINVAL);
}
CASE(mprotect_up_to_a_hole) {
    char *p = absent(3);
    OK(munmap(p + PAGE, PAGE));
    EXPECT_ERROR(mprotect(p, 3 * PAGE, PROT_READ), ENOMEM);
    EXPECT_EQ(touch(p, 1), SEGV_ACCERR);
    EXPECT_EQ(touch(p + 2 * PAGE, 1), 0);
}
CASE(mprotect_of_no_bytes) { OK(mprotect(pages(1), 0, PROT_NONE)); }
CASE(mprotect_executable_runs) {
    char *p = pages(1);
    memcpy(p, "\xb8\x2a\x00\x00\x00\xc3", 6);
    away(p, PAGE);
    OK(mprotect(p, PAGE, PROT_READ | PROT_EXEC));
    EXPECT_EQ(((int (*)(void))p)(), 42);
}
CASE(mremap_shrinks) {
    char *p = absent(4);
    EXPECT(OK((char *)mremap(p, 4 * PAGE, 2 * PAGE, 0)) == p);
    EXPECT(is_filled(p, 2 * PAGE));
    EXPECT_EQ(touch(p + 2 * PAGE, 0), SEGV_MAPERR);
}
CASE(mremap_grows_in_place) {
    char *p = pages(8);
    fill(p, 2 * PAGE);
    OK(munmap(p + 2 * PAGE, 5 * PAGE));
    away(p, 2 * PAGE);
    EXPECT(OK((char *)mremap(p, 2 * PAGE, 4 * PAGE, 0)) == p);
    EXPECT(is_filled(p, 2 * PAGE));
    EXPECT_EQ(p[3 * PAGE], 0);
}
CASE(mremap_without_room) {
    char *p = absent(4);
    EXPECT_ERROR(mremap(p, PAGE, 3 * PAGE, 0), ENOMEM);
    EXPECT(is_filled(p, 4 * PAGE));
}
CASE(mremap_moves) {
    char *p = absent(4);
    char *q = OK((char *)mremap(p, 2 * PAGE, 64 * PAGE, MREMAP_MAYMOVE));
    EXPECT(is_filled(q, 2 * PAGE));
    EXPECT_EQ(q[40 * PAGE], 0);
    if (q != p)
        EXPECT_EQ(touch(p, 0), SEGV_MAPERR);
}
CASE(mremap_fixed) {
    char *p = absent(2), *q = absent(2);
    EXPECT(OK((char *)mremap(p, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, q)) == q);
    EXPECT(is_filled(q, 2 * PAGE));
    EXPECT_EQ(touch(p, 0), SEGV_MAPERR);
}
CASE(mremap_fixed_without_maymove) {
    EXPECT_ERROR(mremap(pages(1), PAGE, PAGE, MREMAP_FIXED, pages(1)), EINVAL);
}
CASE(mremap_fixed_onto_itself) {
    char *p = absent(4);
    EXPECT_ERROR(mremap(p, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, p + PAGE), EINVAL);
    EXPECT(is_filled(p, 4 * PAGE));
}
CASE(mremap_dontunmap) {
    char *p = absent(2);
    char *q = NEEDS((char *)mremap(p, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL));
    EXPECT(is_filled(q, 2 * PAGE));
    EXPECT_EQ(p[0], 0);
}
CASE(mremap_of_nothing) { EXPECT_ERROR(mremap(hole(), PAGE, 2 * PAGE, MREMAP_MAYMOVE), EFAULT); }
CASE(mremap_to_no_bytes) { EXPECT_ERROR(mremap(pages(1), PAGE, 0, MREMAP_MAYMOVE), EINVAL); }
CASE(mremap_at_an_odd_address) { EXPECT_ERROR(mremap(pages(1) + 1, PAGE, PAGE, MREMAP_MAYMOVE), EINVAL); }
CASE(mremap_unknown_flag) { EXPECT_ERROR(mremap(pages(1), PAGE, PAGE, 0x80), EINVAL); }
CASE(mremap_to_an_odd_address) {
    EXPECT_ERROR(mremap(pages(1), PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, pages(2) + 1), EINVAL);
}
