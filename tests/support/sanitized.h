/* sanitized.h - whether this is a build with a sanitizer, which takes several times the time and the memory.
 * Lists of cases are shorter there, but each path is still taken (slow.h, faults.c). */
#ifndef NIB_TESTS_SANITIZED_H
#define NIB_TESTS_SANITIZED_H

/* 1: the address or the thread sanitizer. */
#define SANITIZED (SANITIZED_ADDRESSES || SANITIZED_THREADS)

#ifdef __has_feature /* clang */
#if __has_feature(address_sanitizer)
#define SANITIZED_ADDRESSES 1
#endif
#if __has_feature(thread_sanitizer)
#define SANITIZED_THREADS 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__ /* gcc */
#define SANITIZED_ADDRESSES 1
#endif
#ifdef __SANITIZE_THREAD__
#define SANITIZED_THREADS 1
#endif

#ifndef SANITIZED_ADDRESSES
#define SANITIZED_ADDRESSES 0
#endif
#ifndef SANITIZED_THREADS
#define SANITIZED_THREADS 0
#endif

#endif
