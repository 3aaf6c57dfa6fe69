/* CHECK(condition): counts, and prints what does not hold. return failures(); ends a test. */
#ifndef SERINUS_TESTS_C_API_CHECK_H_
#define SERINUS_TESTS_C_API_CHECK_H_

#include <stdio.h>
#include <string.h>

static int checks_failed, checks_made;

#define CHECK(condition)                                                             \
  do {                                                                               \
    ++checks_made;                                                                   \
    if (!(condition)) {                                                              \
      ++checks_failed;                                                               \
      fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                                \
  } while (0)

/* A call that must fail, with this status and this error id. */
#define CHECK_FAILS(call, want_status, want_id)                                                   \
  do {                                                                                            \
    const serinus_status got_ = (call);                                                           \
    CHECK(got_ == (want_status));                                                                 \
    CHECK(serinus_last_error()->status == (want_status));                                         \
    if (strcmp(serinus_last_error()->id, (want_id)) != 0)                                         \
      fprintf(stderr, "  got %s: %s\n", serinus_last_error()->id, serinus_last_error()->message); \
    CHECK(strcmp(serinus_last_error()->id, (want_id)) == 0);                                      \
  } while (0)

/* A call that must not fail. */
#define CHECK_OK(call)                                                                            \
  do {                                                                                            \
    const serinus_status got_ = (call);                                                           \
    if (got_ != SERINUS_OK)                                                                       \
      fprintf(stderr, "  got %s: %s\n", serinus_last_error()->id, serinus_last_error()->message); \
    CHECK(got_ == SERINUS_OK);                                                                    \
  } while (0)

static int failures(void) {
  printf("%d checks, %d failed\n", checks_made, checks_failed);
  return checks_failed == 0 && checks_made > 0 ? 0 : 1;
}

#endif
