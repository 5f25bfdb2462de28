"""What all commands share: their options, what they hand back, and what happens to errors.

Exit codes: 0 done; 1 unexpected failure, or the answer is that something does not hold; 2 the input cannot be
used, said in one sentence; 130 interrupted, with what is known so far where a command can say it.
"""

from __future__ import annotations

import inspect
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from foretrain.support import answers, progress
from foretrain.support.answers import folder
from foretrain.support.answers.matplotlib_renderer import write
from foretrain.support.answers.text import show
from foretrain.support.errors import ForetrainError, ForetrainWarning, InputError, on_the_command_line
from foretrain.support.json_text import json_text

_INTERRUPTED = 130  # as shells say it
Seed = Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same numbers.")]


@dataclass(frozen=True)
class Command:
    """A function whose parameters are the command's own options, and what it offers besides.

    ``eta: Annotated[float, "Learning rate."]`` is the option --eta with these words as its help.
    """

    function: Callable[..., answers.Answer | answers.Result]
    examples: tuple[str, ...]
    saves: bool = True
    draws: bool = True
    aliases: Mapping[str, str] = field(default_factory=dict)  # options by names of other parameters in Python


@dataclass(frozen=True)
class _Options:
    """The options that the frame adds to a command; the names are those of the parameters."""

    json: Annotated[bool, "Print one JSON document and nothing else."] = False
    save: Annotated[
        Path | None,
        typer.Option(
            "--save", metavar="FOLDER", help="Write data (Zarr), answer and picture to this folder."
        ),
    ] = None
    overwrite: Annotated[bool, "Let --save replace an earlier answer."] = False
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw the picture to this file: .png, .pdf or .svg."),
    ] = None
    debug: Annotated[bool, "Show the traceback of an error."] = False


def run(name: str, command: Command, arguments: Sequence[str]) -> int:
    """Parse the arguments of a command, run it, and print or save its answer."""
    try:
        code = parser(name, command).main(
            args=list(arguments), prog_name=f"foretrain {name}", standalone_mode=False
        )
    except Exception as error:
        # Only the parser's own errors get here; where it keeps their class differs between its versions.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        return report(InputError(f"{message().rstrip('.')}: see 'foretrain {name} --help'."))
    return int(code)


def parser(name: str, command: Command) -> Any:
    """What reads the arguments of a command and prints its help."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    # A line with only \b keeps the parser from joining the lines that follow.
    epilog = "\b\nExamples:\n" + "\n".join(f"  {example}" for example in command.examples)
    spelling: dict[str, str] = {}
    app.command(name, epilog=epilog)(_with_options(command, spelling))
    built = typer.main.get_command(app)
    for option in (one for item in built.params for one in item.opts if one.startswith("--")):
        spelling[option.removeprefix("--").replace("-", "_")] = option
    spelling |= command.aliases
    return built


def report(error: BaseException, *, debug: bool = False, options: Mapping[str, str] | None = None) -> int:
    """Say on stderr, in one sentence with the command's ``options``, what went wrong, and return the exit code."""
    progress.clear()
    if debug:
        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        message, code = "interrupted.", _INTERRUPTED
    elif isinstance(error, ForetrainError):
        message, code = on_the_command_line(error.message, options or {}), 2
    else:
        message, code = f"unexpected {type(error).__name__} ({error}): run it again with --debug.", 1
    print(f"foretrain: {' '.join(message.split())}", file=sys.stderr)
    return code


def _with_options(command: Command, spelling: Mapping[str, str]) -> Callable[..., int]:
    """The command's function with the frame's options among its parameters, as the parser wants to see it.

    ``spelling`` has all options by their names in Python, for messages; it is complete when the command runs.
    """
    own = inspect.signature(command.function, eval_str=True)
    offered = {"json", "debug"}
    offered |= {"save", "overwrite"} if command.saves else set()
    offered |= {"plot"} if command.draws else set()
    all_added = inspect.signature(_Options, eval_str=True).parameters.values()
    added = [item.replace(kind=item.KEYWORD_ONLY) for item in all_added if item.name in offered]
    parameters = [_as_option(item) for item in (*own.parameters.values(), *added)]

    def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        marked = message.message if isinstance(message, ForetrainWarning) else str(message)
        text = on_the_command_line(marked, spelling)
        print(f"foretrain: warning: {' '.join(text.split())}", file=sys.stderr)

    def entry(**values: Any) -> int:
        options = _Options(**{name: values.pop(name) for name in offered})
        try:
            with warnings.catch_warnings():
                warnings.showwarning = show_warning
                return _perform(command, values, options)
        except BrokenPipeError:
            raise
        except SystemExit as error:
            return report(InputError(f"the code that was called asked Python to exit ({error.code})."))
        except (Exception, KeyboardInterrupt) as error:
            return report(error, debug=options.debug, options=spelling)

    signature = own.replace(parameters=parameters, return_annotation=int)
    entry.__doc__ = command.function.__doc__
    entry.__annotations__ = {name: item.annotation for name, item in signature.parameters.items()}
    entry.__dict__["__signature__"] = signature
    return entry


def _as_option(item: inspect.Parameter) -> inspect.Parameter:
    """A parameter that is annotated with words alone becomes the option of its name, and the words its help."""
    kind, *about = get_args(item.annotation) or (item.annotation,)
    if get_origin(item.annotation) is not Annotated or not isinstance(about[0], str):
        return item
    option = typer.Option(f"--{item.name.replace('_', '-')}", help=about[0])
    annotation: Any = Annotated
    return item.replace(annotation=annotation[kind, option])


def _perform(command: Command, values: Mapping[str, Any], options: _Options) -> int:
    # What cannot be written is refused before the work, not after it.
    if options.save is not None:
        folder.refuse_taken_folder(options.save, overwrite=options.overwrite)
    if options.plot is not None:
        folder.refuse_unknown_picture(options.plot)
    # Standard output is for the answer; what a user's function prints goes with the messages.
    with redirect_stdout(sys.stderr):
        given = command.function(**values)
        answer = given.answer() if isinstance(given, answers.Result) else given
    if options.save is not None and answer.data is None:
        raise InputError("this answer has no data: leave out --save.")
    if options.plot is not None:
        if not answer.has_figure:
            raise InputError("this answer has no picture: leave out --plot.")
        write(answer.figures[0], options.plot)
    if options.save is not None:
        folder.write_folder(options.save, answer, overwrite=options.overwrite)
    if options.json:
        print(json_text(answer.document()))
    else:
        show(answer)
        for path in filter(None, (options.plot, options.save)):
            show(answers.Answer(f"Written: {path}"))
    if answer.interrupted:
        return _INTERRUPTED
    return 0 if answer.holds else 1
