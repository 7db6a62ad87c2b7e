/* The one private function of libibverbs that programs call, the examples of rdma-core: in each of the
   private version nodes that `private.S` explains. */

.irp node, IBVERBS_PRIVATE_34, IBVERBS_PRIVATE_57, IBVERBS_PRIVATE_59, IBVERBS_PRIVATE_64, IBVERBS_PRIVATE_65
	.globl gdr_query_gid_type_\node
	.type gdr_query_gid_type_\node, %function
gdr_query_gid_type_\node:
	.symver gdr_query_gid_type_\node, ibv_query_gid_type@\node
.endr
#if defined(__x86_64__)
	endbr64
	jmp ibv_query_gid_type
#else
	hint #34 /* bti c */
	b ibv_query_gid_type
#endif
	.hidden ibv_query_gid_type

	.section .note.GNU-stack, "", %progbits
