/* Runs the gate: src/lib.rs does the work, this is the system that it runs on. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

uint32_t gate_run(void);

/* Where the gate's panic handler ends. */
void gate_panicked(const uint8_t *file, size_t file_len, uint32_t line)
{
    printf("no_std gate: panic at %.*s:%u\n", (int)file_len, (const char *)file, line);
    fflush(stdout);
    _Exit(101);
}

/* The toolchain's compiled core library names this in its unwinding tables. With panic = "abort"
 * nothing unwinds and nobody calls it. */
void rust_eh_personality(void)
{
    abort();
}

int main(void)
{
    uint32_t steps = gate_run();

    if (steps == 0) {
        printf("no_std gate: FAILED, it did nothing\n");
        return 1;
    }
    printf("no_std gate: %u steps without std and without an allocator\n", steps);
    return 0;
}
