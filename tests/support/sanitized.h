/* sanitized.h - whether this is built with a sanitizer, which takes several times the time and the memory. */
#ifndef NIB_TESTS_SANITIZED_H
#define NIB_TESTS_SANITIZED_H

#ifdef __has_feature /* clang */
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#endif
