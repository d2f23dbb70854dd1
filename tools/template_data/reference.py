"""What Python's jinja2 makes of a template, in exactly the environment that transformers uses."""
import copy
import datetime as real_datetime

import jinja2
from transformers.utils import chat_template_utils

NOW = 1721990096  # 2024-07-26 10:34:56 UTC


class FixedNow(real_datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(1970, 1, 1) + real_datetime.timedelta(seconds=NOW)


chat_template_utils.datetime = FixedNow


def compiled(template):
    return chat_template_utils._cached_compile_jinja_template(template)


def unfolded(template):
    """The same without folding constants, which hides some errors."""
    env = compiled("").environment
    env.optimized = False
    getitem = env.getitem

    def strict_getitem(obj, argument):
        return obj[argument] if isinstance(argument, slice) else getitem(obj, argument)

    env.getitem = strict_getitem
    return env.from_string(template)


def outcome(template, variables, compiled=compiled):
    """What the reference does: text, a raised message, or some failure."""
    try:
        return {"expected": compiled(template).render(**copy.deepcopy(variables))}
    except jinja2.exceptions.TemplateSyntaxError:
        return {"fails": True}
    except jinja2.exceptions.SecurityError:
        return {"fails": True}
    except jinja2.exceptions.TemplateRuntimeError:
        return {"fails": True}
    except jinja2.exceptions.TemplateError as e:
        return {"error": str(e)} if type(e) is jinja2.exceptions.TemplateError else {"fails": True}
    except Exception:
        return {"fails": True}
