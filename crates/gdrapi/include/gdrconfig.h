/*
 * gdrconfig.h: which CPU this is compiled for, as GDRCopy's header of this name says it. GDRCopy's
 * own programs include it; the functions of gdrapi.h do not need it.
 *
 * Defines one of GDRAPI_X86, GDRAPI_ARM64 and GDRAPI_POWER.
 */
#ifndef GDR_GDRCONFIG_H
#define GDR_GDRCONFIG_H

#if defined(__x86_64__) || defined(__i386__)
#define GDRAPI_X86
#elif defined(__aarch64__)
#define GDRAPI_ARM64
#elif defined(__powerpc__)
#define GDRAPI_POWER
#else
#error "gdrconfig.h: GDRCopy's programs support x86, aarch64 and POWER"
#endif

#endif
