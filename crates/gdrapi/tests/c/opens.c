/* Opens and closes the library; errno is the exit status where that fails. */
#include <errno.h>
#include <stddef.h>

#include "gdrapi.h"

int main(void) {
    gdr_t g = gdr_open();
    return g == NULL ? errno : gdr_close(g);
}
