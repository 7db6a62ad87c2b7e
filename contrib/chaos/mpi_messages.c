/* Exchanges messages and sums between all ranks for two seconds and 400 rounds at least, and compares each byte. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 300000, VALUES = 1000 };

static unsigned char byte_of(int rank, int round, int at) { return (unsigned char)(rank * 31 + round * 7 + at * 13); }

int main(int argc, char **argv) {
    static unsigned char out[BYTES], in[BYTES];
    static long terms[VALUES], sums[VALUES];
    int rank, ranks, go_on = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    double begin = MPI_Wtime();
    for (int round = 0; go_on; round++) {
        int length = round % 3 == 0 ? 8 : round % 3 == 1 ? 4096 : BYTES;
        for (int at = 0; at < length; at++)
            out[at] = byte_of(rank, round, at);
        memset(in, 0, sizeof in);
        MPI_Sendrecv(out, length, MPI_BYTE, to, 0, in, length, MPI_BYTE, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int at = 0; at < length; at++)
            if (in[at] != byte_of(from, round, at)) {
                printf("WRONG BYTES: byte %d of round %d\n", at, round);
                MPI_Abort(MPI_COMM_WORLD, 3);
            }
        for (int at = 0; at < VALUES; at++)
            terms[at] = (long)rank * round + at;
        MPI_Allreduce(terms, sums, VALUES, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        for (int at = 0; at < VALUES; at++)
            if (sums[at] != (long)ranks * (ranks - 1) / 2 * round + (long)ranks * at) {
                printf("WRONG BYTES: sum %d of round %d\n", at, round);
                MPI_Abort(MPI_COMM_WORLD, 3);
            }
        go_on = round < 400 || MPI_Wtime() - begin < 2;
        MPI_Bcast(&go_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    MPI_Finalize();
    return 0;
}
