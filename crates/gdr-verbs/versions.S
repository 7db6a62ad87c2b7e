/* The private functions of libibverbs that are this library's own, since programs call them: the examples
   of rdma-core, and those that print requests. They are in each of the private version nodes that
   `private.S` explains; the version script has the last one, which is the default version. */

.macro own name
.irp node, IBVERBS_PRIVATE_34, IBVERBS_PRIVATE_57, IBVERBS_PRIVATE_59, IBVERBS_PRIVATE_64
	.globl gdr_\name\()_\node
	.type gdr_\name\()_\node, %function
gdr_\name\()_\node:
	.symver gdr_\name\()_\node, \name@\node
.endr
#if defined(__x86_64__)
	endbr64
	jmp \name
#else
	hint #34 /* bti c */
	b \name
#endif
	.balign 16
.endm

	.text
	own ibv_query_gid_type
	own ibv_wr_opcode_str

	.section .note.GNU-stack, "", %progbits
